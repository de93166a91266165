# The commands of the project. `make help` lists them.
