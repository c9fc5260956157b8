# frozen_string_literal: true

module EventMachine
  # The version of EventMachine whose API this is. Programs compare it, and gems require `~> 1.0`.
  VERSION = '1.2.7'
end
