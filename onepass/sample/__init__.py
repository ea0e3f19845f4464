"""The verb `sample`: one front end for every kind of model, here or on a server."""
