"""One file a command: create, fit, calibrate, erase, evaluate, verify, report."""
