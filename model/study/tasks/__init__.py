"""What mixers are compared on: text, recall and digits, a file each."""
