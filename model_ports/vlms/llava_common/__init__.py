"""What LLaVA-NeXT and Magma do in the same way: prompts of crops and their features."""
