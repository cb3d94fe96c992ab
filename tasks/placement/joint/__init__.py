"""The joint search: SubNet, exit, devices of its segments and coding of sent values, in one exact search."""

from tasks.placement.joint.layout import JointSpace
from tasks.placement.joint.losses import CodingLosses, no_losses
from tasks.placement.joint.problem import JointSearch
from tasks.placement.joint.stage import search_jointly
from tasks.placement.joint.terms import JointTerms

__all__ = ["CodingLosses", "JointSearch", "JointSpace", "JointTerms", "no_losses", "search_jointly"]
