"""What makes the tasks of the synthetic benchmark `printshop`, and images to train and test the small models with."""
