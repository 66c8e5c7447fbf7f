"""Integrals over Gaussian laws: rules on a line, softmax gates, whole mixtures."""
