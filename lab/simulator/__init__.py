"""A scripted provider of four APIs for the demo, the tests and load runs; strict like the real ones."""

from lab.simulator.log import Record
from lab.simulator.rules import Model
from lab.simulator.script import Fault, Script, ScriptedCall
from lab.simulator.simulator import Simulator

__all__ = ["Fault", "Model", "Record", "Script", "ScriptedCall", "Simulator"]
