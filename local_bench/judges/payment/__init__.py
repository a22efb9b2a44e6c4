"""ServImageModel: whether a client would pay for an image, learnt from annotations (ServImage, sec. 4 and app. G)."""
