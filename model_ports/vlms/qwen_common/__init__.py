"""What the ports with one grid of visual tokens per image and M-RoPE share: Qwen2.5-VL, Qwen3-VL
and models that take over their preprocessing and positions."""
