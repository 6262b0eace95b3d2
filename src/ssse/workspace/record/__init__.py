"""What lies on disk: the folder, its ledger, its seal, and how it goes from one whole state to the next."""
