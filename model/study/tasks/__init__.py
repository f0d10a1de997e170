"""What is compared, rows of a table, and on what: text, recall and digits, a file each."""
