"""How derivatives of a model's outputs in θ are taken: several ways, and the choice of one that works and is right."""
