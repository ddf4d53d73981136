"""What is said to people: sentences as data, and the languages that they are put into."""
