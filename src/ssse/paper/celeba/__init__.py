"""Forty attributes of faces: Table 1 and Figure 2."""
