"""Row servers: processes that hold the rows of embedding tables, and how they agree on who holds which.

`greeting`: how connections begin. `settings`: what a server must know about a job. `view_follower`: keeps the view in
step with the servers that live. `row_process`: the process itself. `rank_servers`: how a rank reaches them.
"""
