"""Denoising by softmax attention (section 4): task, error of gated maps, constructions, training."""
