# frozen_string_literal: true

module EventMachine
  # Makes a process that runs its block once per notification, in the context of the process.
  def self.spawn(&block)
    process = SpawnedProcess.new
    process.set_receiver(block)
    process
  end

  # Inside a process: replaces its block.
  def self.yield(&block)
    YieldBlockFromSpawnedProcess.new(block, false)
  end

  # Inside a process: replaces its block, and notifies the process.
  def self.yield_and_notify(&block)
    YieldBlockFromSpawnedProcess.new(block, true)
  end

  class SpawnedProcess
    # Runs the block soon.
    def notify(*args)
      EventMachine.next_tick do
        result = call_receiver(args)
        next unless result.is_a?(YieldBlockFromSpawnedProcess)

        set_receiver(result.block)
        notify if result.notify
      end
      self
    end
    alias resume notify
    alias run notify

    def set_receiver(block)
      @receiver = block
    end

    private

    def call_receiver(args)
      instance_exec(*args, &@receiver)
    end
  end

  class YieldBlockFromSpawnedProcess
    attr_reader :block, :notify

    def initialize(block, notify)
      @block = block
      @notify = notify
    end
  end
end
