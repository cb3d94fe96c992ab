"""Exact solvers over few integer variables at a time. They need numpy and scipy, and nothing else of the house.

A *code* is a row of choice indices, one for each variable. Gain and costs of a code are sums of tables (`solvers.tables`). A
chain (`solvers.chain`) decides one variable after the other; `solvers.exact` finds the best code within budgets along it,
`solvers.whole` the whole Pareto front.
"""
