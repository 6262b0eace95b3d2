"""Choose the scale ε
==================

The paper's own setting, empirical rows over all of the data, needs a scale ε: four ways to choose it.

Then λ beside ε, as a heat map. What was chosen is stored with the curvature, and `ssse.erase` uses it.
"""

import torch

import ssse
from ssse.demo import LOSS, WEIGHT_DECAY, Digits, train

digits = Digits.load()
data = [(digits.x, digits.y)]
model = train(digits.x, digits.y)
curvature = ssse.Curvature.fit(model, LOSS, data, weight_decay=WEIGHT_DECAY, rows="empirical")

# Once, a set of our choice: all of the threes, and the model retrained without them.
forget = digits.members(3, 1.0)
keep = torch.ones(len(digits.y), dtype=torch.bool)
keep[forget] = False
request = [(digits.x[forget], digits.y[forget])]
retrained = train(digits.x[keep], digits.y[keep])

by_retraining = ssse.calibrate(model, curvature, LOSS, request, leave_out=False, retrained=retrained)
print(by_retraining)
by_retraining.figure().savefig("scale.svg")

# Without retraining: until the threes are recognised by chance only; by the loss along the step; by its curvature.
# The last two are for expected rows: here they fall short.
print(ssse.calibrate(model, curvature, LOSS, request, leave_out=False, whole_class=True))
print(ssse.calibrate(model, curvature, LOSS, request, leave_out=False, method="loss_search", data=data))
print(ssse.calibrate(model, curvature, LOSS, request, leave_out=False, method="line_search", data=data))

# λ beside ε.
dampings = [1e-5, 1e-4, 1e-3, 1e-2, 1e-1]
both = ssse.calibrate(model, curvature, LOSS, request, leave_out=False, retrained=retrained, dampings=dampings)
print(both)
both.figure().savefig("scale_and_damping.svg")

# A request that calibration never saw: all of the eights, at the scale that was found on the threes.
eights = digits.members(8, 1.0)
erasure = ssse.erase(model, by_retraining.curvature, LOSS, [(digits.x[eights], digits.y[eights])], leave_out=False)
print(erasure.diagnostics)
