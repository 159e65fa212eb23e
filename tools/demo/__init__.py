"""What the demo models are trained on and with: scenes, dialogues, tokenizer, optimiser, stages.

Nothing here is imported by the program; `tools/train_demo_models.py` is the one entry point.
"""
