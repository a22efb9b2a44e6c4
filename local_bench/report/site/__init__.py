"""A browsable site of one run or several: leaderboard, models, tasks and a gallery; opens from a file."""
