"""Small problems gain nothing from threads, and two test processes would fight over the cores."""

import torch

torch.set_num_threads(1)
