"""Options of Espresso's tree: what they are called, what ranks hold at each task, and how they are carried out."""
