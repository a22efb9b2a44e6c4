"""The monetary value of the images: pure functions over tables. No torch, no files, no clock."""
