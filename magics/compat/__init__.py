"""`%load_ext meshbook.magics.compat`: notebooks written for ipyparallel's or nbdistributed's magics run on meshes."""
