"""The verb `sample`: one front end for every kind of model, local or served."""
