"""Networks whose erasure lasts: step and repair beside the strongest opponents, and what comes back afterwards."""
