"""The node: dispatch, pending calls, hosted actors, supervision, flow control. Every process runs one; see README.md"""
