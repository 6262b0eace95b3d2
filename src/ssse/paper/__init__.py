"""The paper's experiments: from their data to a page to put beside the paper."""
