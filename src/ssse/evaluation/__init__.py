"""Models beside retrained ones: every measure on every split, in one table; and one model along a step."""
