"""The page of a workspace: what was asked, what was done, and what is known about it."""
