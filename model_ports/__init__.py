"""Vision-language models ported to Flax NNX on shared parts."""
