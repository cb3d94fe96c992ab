"""Exact solvers over few integer variables at a time. They need numpy and scipy, and no other package of this project.

A *code* is a row of choice indices, one for each variable. Gain and costs of a code are sums of tables (`solvers.tables`). A
chain (`solvers.chain`) eliminates one variable after the other; along it `solvers.exact` finds the best code within budgets,
and `solvers.front` the whole Pareto front.
"""
