"""A curvature M = RᵀR + nλI: fitted once after training, then solved per request."""

from ssse.curvature.curvature import Curvature, plan

__all__ = ["Curvature", "plan"]
