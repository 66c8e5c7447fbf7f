"""Softmax attention on Gaussian mixtures."""
