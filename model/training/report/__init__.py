"""What a training run tells: its progress, its figures in a file, its picture."""
