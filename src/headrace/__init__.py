"""headrace feeds GPUs with training data from mixtures of many robot-learning datasets."""

__version__ = "0.1.0"
