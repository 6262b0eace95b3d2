"""One file a command: create, fit, calibrate, erase, evaluate, report, log, verify; `checks` are shared."""
