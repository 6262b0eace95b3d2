"""One request: checked, solved in one step, and what the step has to say about itself."""
