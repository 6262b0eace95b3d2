"""A curvature M = RᵀR + nλI: fitted once after training, then solved per request."""

from ssse.curvature.curvature import Curvature
from ssse.curvature.forecast import plan

__all__ = ["Curvature", "plan"]
