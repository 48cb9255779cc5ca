"""Models under measurement. They are packaged with their module: import torch only."""
