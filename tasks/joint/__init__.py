"""The joint search: SubNet, exit, devices of its segments and coding of sent values, in one exact search."""

from tasks.joint.layout import JointSpace
from tasks.joint.losses import CodingLosses, no_losses
from tasks.joint.problem import JointSearch
from tasks.joint.stage import search_jointly
from tasks.joint.terms import JointTerms

__all__ = ["CodingLosses", "JointSearch", "JointSpace", "JointTerms", "no_losses", "search_jointly"]
