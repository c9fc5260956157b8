# frozen_string_literal: true

# `EventMachine::Deferrable::Pool` is another name of `EventMachine::Pool`.
module EventMachine
  module Deferrable
    Pool = EventMachine::Pool
  end
end
