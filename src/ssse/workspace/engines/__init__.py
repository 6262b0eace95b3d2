"""The two kinds of model behind one interface: torch modules and scikit-learn estimators."""
