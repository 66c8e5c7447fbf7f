"""Denoising by softmax attention (section 4): task, gated maps, constructions, training."""
