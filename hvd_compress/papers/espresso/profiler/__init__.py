"""What does a training take? Recording the planner's three inputs: model, compressor and system."""
