"""What the images are worth: pure functions over tables. No torch, no files, no clock."""
