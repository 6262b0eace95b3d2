"""One file a command: create, fit, calibrate, erase, inbox, evaluate, report, log, verify; `checks` are shared."""
