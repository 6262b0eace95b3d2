"""Deletion requests as a job: a folder with the model, its curvature, and a ledger of what was done."""
